"""What people and other programs see of a campaign; everything here can be rebuilt."""
