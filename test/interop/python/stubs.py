"""Makes the generated modules importable, whose packages `grpc` and `google` share their names with installed ones."""
import os

import google.protobuf
import grpc

STUBS = os.environ["TENDON_STUBS"]
grpc.__path__.append(os.path.join(STUBS, "grpc"))
