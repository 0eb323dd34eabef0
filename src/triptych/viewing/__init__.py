"""What a person sees: annotated images and 3-D markers. Pure functions over the contract, numpy and OpenCV."""
