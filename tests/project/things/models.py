from django.db import models


class Thing(models.Model):
    id = models.BigAutoField(primary_key=True)
    name = models.TextField()

    def __str__(self) -> str:
        return self.name
