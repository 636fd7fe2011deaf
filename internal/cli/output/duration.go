package output

import (
	"fmt"
	"time"
)

// Duration formats a duration in its two largest units, rounded down: 35ms, 4.2s, 42s, 1m30s, 5h2m, 3d4h.
func Duration(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 0:
		return "-" + Duration(-d)
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Truncate(100*time.Millisecond).Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return twoUnits(d, time.Minute, "m", time.Second, "s")
	case d < 2*day:
		return twoUnits(d, time.Hour, "h", time.Minute, "m")
	}
	return twoUnits(d, day, "d", time.Hour, "h")
}

func twoUnits(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	text := fmt.Sprintf("%d%s", d/large, largeName)
	if n := d % large / small; n > 0 {
		text += fmt.Sprintf("%d%s", n, smallName)
	}
	return text
}

// Expiry formats how long a lease or key still lasts; a negative duration means that it has no expiry.
func Expiry(d time.Duration) string {
	if d < 0 {
		return "never"
	}
	return Duration(d)
}
