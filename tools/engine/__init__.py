"""What a run is made of besides the network and the images: configuration, schedule, loops and logs."""
