from tests.project.daphnes import build

server = build()
