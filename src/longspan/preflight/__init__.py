"""Pre-flight: what every node says of itself, checked, compared and tried out before anything heavy is loaded."""
