"""What a run is made of besides the network and the images: configuration, weights, schedule, loops and logs."""
