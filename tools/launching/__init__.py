"""Several processes of one command under Paddle's launcher, supervised from outside."""
