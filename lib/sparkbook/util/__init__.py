"""Small tools that the whole library uses and that know nothing of it."""
