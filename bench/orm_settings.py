from tests.project.settings import *  # noqa: F403

ROOT_URLCONF = "bench.orm_project"
