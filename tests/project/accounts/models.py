from __future__ import annotations

import uuid

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.db import models


class Members(BaseUserManager["Account"]):
    def get_queryset(self) -> models.QuerySet[Account]:
        return super().get_queryset().filter(left=False)


class Account(AbstractBaseUser):
    """As little of a user as Django takes, known by an e-mail address; who has left stays in the table, hidden."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    email = models.EmailField(unique=True)
    left = models.BooleanField(default=False)

    objects = Members()

    USERNAME_FIELD = "email"
