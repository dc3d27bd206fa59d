"""The version, a literal: the build reads it without importing the package."""

VERSION = "0.1.0"
