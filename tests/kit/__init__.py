"""What tests share: servers they start, platforms to run on, scripts to run there."""
