"""A process that uses a lock of a Python library: client.py LIBRARY HOST:PORT NAME.

It reads commands and answers each with one line; ../interop_test.go documents them.
"""

import sys
import time

import redis
from redis.exceptions import LockError

RETRY = 0.005  # seconds
TTL = 10  # seconds


class RedisPy:
    """redis.lock.Lock of redis-py."""

    def __init__(self, client, name):
        self.lock = client.lock(name, timeout=TTL, sleep=RETRY)

    def acquire(self, wait):
        return self.lock.acquire(blocking=wait)

    def release(self):
        try:
            self.lock.release()
            return True
        except LockError:
            return False


class PythonRedisLock:
    """redis_lock.Lock of python-redis-lock. expire is also how long a waiter sleeps; None is for ever."""

    def __init__(self, client, name, expire=2):
        import redis_lock

        self.module, self.client = redis_lock, client
        self.lock = redis_lock.Lock(client, name, expire=expire, auto_renewal=expire is not None)

    def acquire(self, wait):
        return self.lock.acquire(blocking=wait)

    def release(self):
        try:
            self.lock.release()
            return True
        except self.module.NotAcquired:
            return False

    def reset(self):
        self.module.reset_all(self.client)


class Pottery:
    """pottery.Redlock of pottery, on one server."""

    def __init__(self, client, name):
        from pottery import Redlock, ReleaseUnlockedLock

        self.error = ReleaseUnlockedLock
        Redlock._RETRY_DELAY = RETRY
        self.lock = Redlock(key=name, masters={client}, auto_release_time=TTL)

    def acquire(self, wait):
        return self.lock.acquire(blocking=wait)

    def release(self):
        try:
            self.lock.release()
            return True
        except self.error:
            return False


LIBRARIES = {
    "redis-py": RedisPy,
    "python-redis-lock": PythonRedisLock,
    "python-redis-lock without expire": lambda client, name: PythonRedisLock(client, name, None),
    "pottery": Pottery,
}


def count(client, lock, library, counter, rounds, pause):
    for _ in range(rounds):
        lock.acquire(True)
        n = int(client.get(counter) or 0)
        client.rpush(counter + ":order", library)  # a round trip, in which others can interfere
        client.set(counter, n + 1)
        if not lock.release():
            raise RuntimeError("the lock was lost")
        time.sleep(pause / 1000)


def main():
    library, address, name = sys.argv[1:]
    host, port = address.split(":")
    client = redis.Redis(host=host, port=int(port))
    lock = LIBRARIES[library](client, name)
    for line in sys.stdin:
        command, *args = line.split()
        try:
            if command == "try":
                answer = "acquired" if lock.acquire(False) else "refused"
            elif command == "lock":
                answer = "acquired" if lock.acquire(True) else "refused"
            elif command == "release":
                answer = "released" if lock.release() else "not held"
            elif command == "count":
                count(client, lock, library, args[0], int(args[1]), int(args[2]))
                answer = "counted"
            elif command == "reset":
                lock.reset()
                answer = "reset"
            else:
                answer = "error: no such command"
        except Exception as e:  # the test says what is expected
            answer = f"error: {type(e).__name__}: {e}"
        print(answer.replace("\n", " "), flush=True)


main()
