package httplimit

import (
	"math"
	"net/http"
	"strconv"
	"time"
)

// retryAfter is for how long a response asks to send nothing; 0 if it does not. RFC 9110, section 10.2.3, has both forms of
// Retry-After.
func retryAfter(response *http.Response) time.Duration {
	if response.StatusCode != http.StatusTooManyRequests && response.StatusCode != http.StatusServiceUnavailable {
		return 0
	}
	value := response.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(value, 10, 64); err == nil {
		return time.Duration(min(seconds, math.MaxInt64/uint64(time.Second))) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	from, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		return 0
	}
	return max(at.Sub(from), 0)
}
