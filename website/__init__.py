"""The site of the documentation: pages that are written from the code, and how pages outside of docs/ join them."""
