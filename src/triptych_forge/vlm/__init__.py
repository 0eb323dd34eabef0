"""Training of the two built-in vision-language models; off-board only, needs the ``forge`` extra."""
