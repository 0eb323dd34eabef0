"""Language side of the VLM tiers: vocabulary, answer grammar, constrained decoding and the engine built on them."""
