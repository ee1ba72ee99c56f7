"""What the saves of one listing say of each other."""
