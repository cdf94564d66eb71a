"""What a network does with one image, as pictures: feature maps, attention, soft splits."""
