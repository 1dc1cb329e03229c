"""The claims register: every claim of the source documents, its verdict, and how it is checked."""
