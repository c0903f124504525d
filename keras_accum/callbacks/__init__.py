"""The callbacks of all hosts, a file each. A host makes Keras's callbacks of them."""
