"""Virtual worlds: engines that run many peers on one machine, and what is asked of them."""
