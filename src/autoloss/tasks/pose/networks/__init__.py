"""Networks that predict a heatmap for each joint."""
