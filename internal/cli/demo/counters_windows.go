package demo

import "errors"

// openCounters is not supported: on Windows the act that uses it is not performed.
func openCounters(string) (*counters, error) { return nil, errors.ErrUnsupported }
