"""Quantisation: smaller numbers for weights and activations, and the measurements that say what it costs.

* :mod:`.affine` the equations, in numpy
* :mod:`.fold` batch normalisation into convolutions
* :mod:`.calibrate` ranges from in-domain inputs, and the refusal of inputs from another domain
* :mod:`.record` what the calibration data looked like, as a file beside the engine
* :mod:`.ptq` post-training quantisation of an ONNX graph
* :mod:`.qat` fine-tuning with quantisers in the network, and its export
* :mod:`.weights` 4-bit weights for decoders: round-to-nearest, AWQ, GPTQ
* :mod:`.mixed` which layers stay in higher precision
* :mod:`.targets` recipes per target, as data
* :mod:`.accept` a slower child is rejected
* :mod:`.orders` quantise first or prune first
"""
