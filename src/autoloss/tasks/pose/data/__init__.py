"""Persons with joints: COCO's files, drawn figures, and the crops that networks see."""
