package httplimit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

// defaultTimeout is the default of HandlerOptions.Timeout.
const defaultTimeout = time.Second

// HandlerOptions are the settings of NewHandler. Nil, and the zero value of each field, mean the defaults.
// NewHandler copies them.
type HandlerOptions struct {
	// FailOpen lets requests pass while the limit cannot be checked. Default false: such a request is answered with 503 Service
	// Unavailable.
	//
	// It cannot be checked while Redis does not answer, or if the limiter function of NewHandler returns an error.
	FailOpen bool

	// Timeout bounds how long the check may take. It does not bound the next handler. At least 1 ms. Default 1 s.
	Timeout time.Duration

	// OnError is called for each request whose limit could not be checked. Default: a warning is logged, once a minute while
	// requests fail.
	//
	// It is called whether the request passes or not, concurrently. The warning goes to slog.Default(); requests whose client has
	// gone do not count.
	OnError func(r *http.Request, err error)
}

// NewHandler returns a handler that calls next for the requests that their limiters allow, and answers the others with 429 Too
// Many Requests. It never waits for permits; the check blocks for a round trip to Redis, and for at most
// HandlerOptions.Timeout. The handler is safe for concurrent use if next is.
//
// Responses have the headers RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset, and a refusal has Retry-After. Times are
// in whole seconds, rounded up, so that a client that waits for as long does not come too early. [ratelimit.Result] says how
// exact the numbers are.
//
// The function limiter returns the limiter of a request: that of [Shared] returns one for all requests, that of [PerKey] one
// for each client. If it returns nil, the request passes.
//
// The error is [lockkeeper.ErrInvalid] if limiter or next is nil, or an option is out of range.
func NewHandler(limiter func(*http.Request) (*ratelimit.Limiter, error), next http.Handler, opts *HandlerOptions) (http.Handler, error) {
	h := &handler{next: next, limiter: limiter}
	if opts != nil {
		h.o = *opts
	}
	if h.o.OnError == nil {
		h.o.OnError = h.logError
	}
	switch {
	case limiter == nil:
		return nil, server.Invalid("the limiter function is nil")
	case next == nil:
		return nil, server.Invalid("the next handler is nil")
	case h.o.Timeout == 0:
		h.o.Timeout = defaultTimeout
	case h.o.Timeout < time.Millisecond:
		return nil, server.Invalid("Timeout %v is shorter than 1ms", h.o.Timeout)
	}
	return h, nil
}

type handler struct {
	next    http.Handler
	limiter func(*http.Request) (*ratelimit.Limiter, error)
	o       HandlerOptions
	errors  server.LogLimit
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	result, err := h.check(r)
	if err != nil {
		h.o.OnError(r, err)
		if !h.o.FailOpen {
			http.Error(w, "the rate limit cannot be checked", http.StatusServiceUnavailable)
			return
		}
	}
	if result != nil {
		setHeaders(w.Header(), result)
		if !result.Allowed {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
	}
	h.next.ServeHTTP(w, r)
}

// logError is the default of HandlerOptions.OnError.
func (h *handler) logError(r *http.Request, err error) {
	if r.Context().Err() == nil {
		h.errors.Log(slog.Default(), slog.LevelWarn, "the rate limit of requests cannot be checked", "passed", h.o.FailOpen, "error", err)
	}
}

// check asks for a permit. Without a limiter, or after an error, there is no result.
func (h *handler) check(r *http.Request) (*ratelimit.Result, error) {
	limiter, err := h.limiter(r)
	if limiter == nil || err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.o.Timeout)
	defer cancel()
	result, err := limiter.Allow(ctx)
	if err != nil {
		return nil, err
	}
	return &result, nil
}

func setHeaders(h http.Header, result *ratelimit.Result) {
	h.Set("RateLimit-Limit", strconv.Itoa(result.Limit))
	h.Set("RateLimit-Remaining", strconv.Itoa(result.Remaining))
	h.Set("RateLimit-Reset", seconds(result.ResetAfter))
	if !result.Allowed {
		h.Set("Retry-After", seconds(max(result.RetryAfter, time.Second)))
	}
}

// seconds is a duration as headers have it.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}

// Shared returns a function for NewHandler that limits all requests together. If the limiter is nil, the function returns an error
// that matches [lockkeeper.ErrInvalid] for each request: a limit that is missing is not one that lets everything pass.
func Shared(limiter *ratelimit.Limiter) func(*http.Request) (*ratelimit.Limiter, error) {
	return func(*http.Request) (*ratelimit.Limiter, error) {
		if limiter == nil {
			return nil, server.Invalid("the limiter is nil")
		}
		return limiter, nil
	}
}

// PerKey returns a function for NewHandler that limits the requests of each key, such as a user or an address: at most limit of
// them in any window. The function key returns the key of a request; requests with an empty key pass. Each key has a Limiter,
// whose name is name, a colon, and a hash of the key. So keys can be of any length, and no key leads to the name of another
// lock.
//
// The options are those of each Limiter; nil means the defaults. The error is [lockkeeper.ErrInvalid] if key is nil, and for what
// [ratelimit.New] would refuse.
func PerKey(k *lockkeeper.Keeper, name string, limit int, window time.Duration, key func(*http.Request) string, opts *ratelimit.Options) (func(*http.Request) (*ratelimit.Limiter, error), error) {
	if key == nil {
		return nil, server.InvalidFor(ratelimit.Kind, name, "the key function is nil")
	}
	if name == "" {
		return nil, server.Invalid("the name is empty")
	}
	var o ratelimit.Options
	if opts != nil {
		o = *opts
	}
	named := func(key string) (*ratelimit.Limiter, error) {
		sum := sha256.Sum256([]byte(key))
		return ratelimit.New(k, name+":"+hex.EncodeToString(sum[:16]), limit, window, &o)
	}
	if _, err := named(""); err != nil {
		return nil, server.OfLock(string(ratelimit.Kind), name, server.WithoutName(err))
	}
	return func(r *http.Request) (*ratelimit.Limiter, error) {
		key := key(r)
		if key == "" {
			return nil, nil
		}
		return named(key)
	}, nil
}

// RemoteIP is a key function for PerKey. It returns the IP address of the connection's other end, without the port; of an IPv6
// address it returns the first 64 bits, since a client usually has all addresses that share them. Behind a proxy this is the
// address of the proxy: use a header that the proxy sets instead, provided that clients cannot set it.
func RemoteIP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	ip := net.ParseIP(host)
	if ip == nil || ip.To4() != nil {
		return host
	}
	return ip.Mask(net.CIDRMask(64, 128)).String()
}
