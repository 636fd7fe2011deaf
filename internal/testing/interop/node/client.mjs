// A process that uses a lock of a Node library: client.mjs LIBRARY HOST:PORT NAME.
//
// It reads commands and answers each with one line; ../interop_test.go documents them.

import readline from "node:readline";
import { createRequire } from "node:module";
import Redis from "ioredis";
import { Mutex } from "redis-semaphore";

// The ES module of redlock 5.0.0-beta.2 cannot be imported: its package.json does not declare it as one.
const require = createRequire(import.meta.url);
const { default: Redlock5 } = require("redlock");
const Redlock4 = require("redlock4");

const RETRY = 5; // ms
const TTL = 10000; // ms

const [library, address, name] = process.argv.slice(2);
const [host, port] = address.split(":");
const redis = new Redis({ host, port: Number(port) });

// Each has acquire(wait), which says whether it has the lock, and release(), which says whether it had it.
const libraries = {
  "node-redlock 5": () => {
    // With -1 here, a release of a lock that is held elsewhere by now would be tried for ever.
    const redlock = new Redlock5([redis], { retryCount: 0, retryDelay: RETRY, retryJitter: RETRY });
    let lock;
    return {
      async acquire(wait) {
        try {
          lock = await redlock.acquire([name], TTL, { retryCount: wait ? -1 : 0 });
          return true;
        } catch (e) {
          return refused(e, "ExecutionError");
        }
      },
      async release() {
        try {
          await lock.release();
          return true;
        } catch (e) {
          return refused(e, "ExecutionError");
        }
      },
    };
  },
  "node-redlock 4": () => {
    const make = (retryCount) => new Redlock4([redis], { retryCount, retryDelay: RETRY, retryJitter: RETRY });
    let lock;
    return {
      async acquire(wait) {
        try {
          lock = await make(wait ? -1 : 0).lock(name, TTL);
          return true;
        } catch (e) {
          return refused(e, "LockError");
        }
      },
      async release() {
        try {
          await lock.unlock();
          return true;
        } catch (e) {
          return refused(e, "LockError");
        }
      },
    };
  },
  "redis-semaphore": () => {
    const mutex = new Mutex(redis, name, { lockTimeout: TTL, acquireTimeout: 120000, retryInterval: RETRY });
    const once = new Mutex(redis, name, { lockTimeout: TTL, acquireAttemptsLimit: 1 });
    let held;
    return {
      async acquire(wait) {
        held = wait ? mutex : once;
        return held.tryAcquire();
      },
      async release() {
        await held.release(); // does not say whether it was held
        return true;
      },
    };
  },
};

function refused(error, type) {
  if (error.name === type) return false;
  throw error;
}

const lock = libraries[library]();

async function count(counter, rounds, pause) {
  for (let i = 0; i < rounds; i++) {
    if (!(await lock.acquire(true))) throw new Error("refused");
    const n = Number((await redis.get(counter)) ?? 0);
    await redis.rpush(counter + ":order", library); // a round trip, in which others can interfere
    await redis.set(counter, n + 1);
    if (!(await lock.release())) throw new Error("the lock was lost");
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

const commands = {
  try: async () => ((await lock.acquire(false)) ? "acquired" : "refused"),
  lock: async () => ((await lock.acquire(true)) ? "acquired" : "refused"),
  release: async () => ((await lock.release()) ? "released" : "not held"),
  count: async (counter, rounds, pause) => {
    await count(counter, Number(rounds), Number(pause));
    return "counted";
  },
};

for await (const line of readline.createInterface({ input: process.stdin })) {
  const [command, ...args] = line.split(" ");
  let answer;
  try {
    answer = await commands[command](...args);
  } catch (e) {
    answer = `error: ${e.name}: ${e.message}`;
  }
  console.log(answer.replaceAll("\n", " "));
}
redis.disconnect();
