"""From folders and list files to batches of uint8 pixels: listing, decoding, transforms, dataset, loader.

Nothing here knows the network or the training loop, and nothing is imported on the way in.
"""
