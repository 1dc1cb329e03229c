"""Small tools that any floor may use."""
