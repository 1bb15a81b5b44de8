"""Sink `email`: rows as mails, one each or many in a digest, over SMTP."""
