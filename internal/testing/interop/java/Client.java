import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.time.Instant;
import java.util.ConcurrentModificationException;
import java.util.Optional;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.redis.spring.RedisLockProvider;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.config.Config;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.integration.redis.util.RedisLockRegistry;

/**
 * A process that uses a lock of a Java library: Client LIBRARY HOST:PORT NAME.
 *
 * <p>It reads commands and answers each with one line; ../interop_test.go documents them.
 */
public class Client {
    static final Duration TTL = Duration.ofSeconds(10);
    static final Duration RETRY = Duration.ofMillis(5);

    interface Lock {
        /** Says whether it has the lock. */
        boolean acquire(boolean wait) throws Exception;

        /** Says whether it had the lock, if the library does. */
        boolean release();
    }

    /** LockProvider of ShedLock, which never waits, so that this class does. */
    static class ShedLock implements Lock {
        final RedisLockProvider provider;
        final String name;
        SimpleLock held;

        ShedLock(LettuceConnectionFactory connections, String name, boolean safeUpdate) {
            provider = new RedisLockProvider.Builder(connections).safeUpdate(safeUpdate).build();
            this.name = name;
        }

        public boolean acquire(boolean wait) throws InterruptedException {
            while (true) {
                Optional<SimpleLock> lock =
                        provider.lock(new LockConfiguration(Instant.now(), name, TTL, Duration.ZERO));
                if (lock.isPresent()) {
                    held = lock.get();
                    return true;
                }
                if (!wait) return false;
                Thread.sleep(RETRY.toMillis());
            }
        }

        public boolean release() {
            held.unlock(); // does not say whether it was held
            return true;
        }
    }

    /** RedisLockRegistry of Spring Integration. */
    static class Spring implements Lock {
        final java.util.concurrent.locks.Lock lock;

        Spring(LettuceConnectionFactory connections, String name) {
            RedisLockRegistry registry = new RedisLockRegistry(connections, "registry", TTL);
            registry.setIdleBetweenTries(RETRY);
            lock = registry.obtain(name);
        }

        public boolean acquire(boolean wait) {
            if (!wait) return lock.tryLock();
            lock.lock();
            return true;
        }

        public boolean release() {
            try {
                lock.unlock();
                return true;
            } catch (ConcurrentModificationException e) {
                return false;
            }
        }
    }

    /** RLock of Redisson. */
    static class RedissonLock implements Lock {
        final RLock lock;

        RedissonLock(RLock lock) {
            this.lock = lock;
        }

        public boolean acquire(boolean wait) throws InterruptedException {
            return lock.tryLock(wait ? 60 : 0, TTL.toSeconds(), java.util.concurrent.TimeUnit.SECONDS);
        }

        public boolean release() {
            lock.unlock();
            return true;
        }
    }

    static Lock open(String library, String address, LettuceConnectionFactory connections, String name) {
        switch (library) {
            case "ShedLock":
                return new ShedLock(connections, name, false);
            case "ShedLock with safeUpdate":
                return new ShedLock(connections, name, true);
            case "Spring RedisLockRegistry":
                return new Spring(connections, name);
        }
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + address).setConnectionMinimumIdleSize(1).setConnectionPoolSize(4)
                .setRetryAttempts(0);
        var redisson = Redisson.create(config);
        switch (library) {
            case "Redisson RLock":
                return new RedissonLock(redisson.getLock(name));
            case "Redisson fair lock":
                return new RedissonLock(redisson.getFairLock(name));
            case "Redisson spin lock":
                return new RedissonLock(redisson.getSpinLock(name));
        }
        throw new IllegalArgumentException(library);
    }

    static void count(Lock lock, StringRedisTemplate redis, String library, String counter, int rounds, int pause)
            throws Exception {
        for (int i = 0; i < rounds; i++) {
            if (!lock.acquire(true)) throw new IllegalStateException("refused");
            String value = redis.opsForValue().get(counter);
            int n = value == null ? 0 : Integer.parseInt(value);
            redis.opsForList().rightPush(counter + ":order", library); // a round trip, in which others can interfere
            redis.opsForValue().set(counter, String.valueOf(n + 1));
            if (!lock.release()) throw new IllegalStateException("the lock was lost");
            Thread.sleep(pause);
        }
    }

    public static void main(String[] args) throws Exception {
        String library = args[0];
        String[] address = args[1].split(":");
        var connections = new LettuceConnectionFactory(address[0], Integer.parseInt(address[1]));
        connections.afterPropertiesSet();
        connections.start();
        var redis = new StringRedisTemplate(connections);
        Lock lock = open(library, args[1], connections, args[2]);
        var in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            String[] words = line.split(" ");
            String answer;
            try {
                switch (words[0]) {
                    case "try":
                        answer = lock.acquire(false) ? "acquired" : "refused";
                        break;
                    case "lock":
                        answer = lock.acquire(true) ? "acquired" : "refused";
                        break;
                    case "release":
                        answer = lock.release() ? "released" : "not held";
                        break;
                    case "count":
                        count(lock, redis, library, words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]));
                        answer = "counted";
                        break;
                    default:
                        answer = "error: no such command";
                }
            } catch (Exception e) {
                answer = "error: " + e;
            }
            System.out.println(answer.replace('\n', ' '));
        }
        System.exit(0); // without waiting for the threads of the libraries
    }
}
