"""Engines that generate text, behind the contract of `engines.base`."""
