"""What is given to users: wheel, sdist, Debian package, container image, and the lists of what is inside."""
