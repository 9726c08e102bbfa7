"""The application: a configuration becomes running parts, a changed one is applied, manifests are planned offline."""
