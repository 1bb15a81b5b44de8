"""Loss of power: a disk that forgets what was not fsynced, and the product on it (`make powerloss`)."""
