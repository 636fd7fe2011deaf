package connect

import (
	"os"
	"os/user"
)

// UserAtHost says who runs the command, for locks that are broken by it.
func UserAtHost() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}
