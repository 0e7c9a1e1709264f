"""The web page of one deployment: reads the controller's picture, keeps its history, and asks it to act."""
