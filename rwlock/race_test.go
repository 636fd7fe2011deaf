//go:build race

package rwlock_test

func init() { raceDetector = true }
