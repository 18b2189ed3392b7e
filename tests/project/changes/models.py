from django.db import models


class Order(models.Model):
    id = models.BigAutoField(primary_key=True)
    number = models.TextField(unique=True)

    def __str__(self) -> str:
        return self.number


class Line(models.Model):
    id = models.BigAutoField(primary_key=True)
    order = models.ForeignKey(Order, on_delete=models.CASCADE)

    def __str__(self) -> str:
        return f"a line of {self.order}"
