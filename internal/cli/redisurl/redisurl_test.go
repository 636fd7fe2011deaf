package redisurl

import (
	"errors"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
)

// secret is a password that must not be in any error.
const secret = "hunter-2-hunter"

// Without validation, these URLs cause a panic in go-redis, a connection to another server, or an error that shows a password.
func TestInvalidURLsRejected(t *testing.T) {
	for raw, says := range map[string]string{
		"redis://h?pool_size=-1":                                  "pool_size -1 is not between",
		"redis+sentinel://h?master_name=x&pool_size=-1":           "pool_size -1 is not between",
		"redis+cluster://h?pool_size=-1":                          "pool_size -1 is not between",
		"redis://h?pipeline_pool_size=-1":                         "pipeline_pool_size -1 is not between",
		"redis://h?min_idle_conns=1000000":                        "min_idle_conns 1000000 is not between",
		"redis:h:6379":                                            "no // after",
		"redis+cluster:h:7000":                                    "no // after",
		"u:" + secret + "@h:6379":                                 "no // after",
		"redis://h/0?password=" + secret + "&db=x":                "invalid database number",
		"redis+sentinel://h?password=" + secret:                   "no master_name",
		"redis+cluster://h?addr=u:" + secret + "@h&no=" + secret:  "unexpected option: no",
		"redis://u:" + secret + "@h/x":                            "invalid database number",
		"//u:" + secret + "@h":                                    "invalid URL scheme",
		"redis+sentinel://h?sentinel_password=" + secret + "&x=%": "",
	} {
		_, err := Connect(raw)
		var own *exit.Error
		if !errors.As(err, &own) || own.Code != exit.Usage || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", raw, err)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the password is shown: %v", raw, err)
		}
	}
}

func TestRedact(t *testing.T) {
	if got := Redact("redis+sentinel://me:secret@x:1?master_name=m&password=secret"); strings.Contains(got, "secret") {
		t.Error(got)
	}
}
