"""Configs of public models, each with source, licence and date."""
