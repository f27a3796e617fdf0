"""Networks for segmentation."""
