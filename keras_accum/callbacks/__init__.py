"""The callbacks, one file each. A host combines each of them with Keras's Callback class."""
