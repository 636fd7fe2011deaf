package redisurl

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// secret is a password that must not be in any error.
const secret = "hunter-2-hunter"

// Without validation, these URLs cause a panic in go-redis, a connection to another server, or an error that shows a password.
func TestInvalidURLsRejected(t *testing.T) {
	for raw, says := range map[string]string{
		"redis://h?pool_size=-1":                                  "pool_size -1 is not between",
		"redis://h?pipeline_pool_size=-1":                         "pipeline_pool_size -1 is not between",
		"redis://h?min_idle_conns=1000000":                        "min_idle_conns 1000000 is not between",
		"redis:h:6379":                                            "no // after",
		"u:" + secret + "@h:6379":                                 "no // after",
		"redis://h/0?password=" + secret + "&db=x":                "invalid database number",
		"redis+sentinel://h?password=" + secret:                   "no master_name",
		"redis+cluster://h?addr=u:" + secret + "@h&no=" + secret:  "unexpected option: no",
		"redis://u:" + secret + "@h/x":                            "invalid database number",
		"//u:" + secret + "@h":                                    "invalid URL scheme",
		"redis+sentinel://h?sentinel_password=" + secret + "&x=%": "",
		"redis://u:" + secret + "/x@h:6379":                       "write / as %2F",
		"redis://u:12/" + secret + "@h:6379":                      "write / as %2F",
		"redis://u:" + secret + "#x@h:6379":                       "# as %23",
		"redis://:12#" + secret + "@h:6379":                       "# as %23",
		"redis://u:12?" + secret + "@h:6379":                      "? as %3F",
		"redis://u:50%" + secret + "@h:6379":                      "% as %25",
		"redis://u:12/" + secret + "@h/x?master_name=m":           "write / as %2F",
	} {
		got := Redact(raw)
		check.That(t, !strings.Contains(got, secret), "%s is shown as %s", raw, got)
		_, err := Parse(raw, Credentials{})
		var own *exit.Error
		check.That(t, errors.As(err, &own) && own.Code == exit.Usage && strings.Contains(err.Error(), says), "%s: %v", raw, err)
		check.That(t, err == nil || !strings.Contains(err.Error(), secret), "%s: the password is shown: %v", raw, err)
	}
}

func TestPasswordOfFileOrEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	must.OK(t, os.WriteFile(file, []byte("pa/ss\n"), 0o600))
	t.Setenv("REDIS_PASSWORD", "of-env")
	for _, c := range []struct {
		url, file, want, says string
	}{
		{"redis://h", "", "of-env", ""},
		{"redis://u@h", file, "pa/ss", ""},
		{"redis://u:of-url@h", "", "of-url", ""},
		{"redis+cluster://h", file, "pa/ss", ""},
		{"redis+sentinel://h?master_name=m", file, "pa/ss", ""},
		{"redis://u:of-url@h", file, "", "cannot be used with a password in the URL"},
		{"redis://h", file + "-none", "", "no such file"},
		{"redis://h", os.DevNull, "", "the file is empty"},
	} {
		target, err := Parse(c.url, Credentials{PasswordFile: c.file})
		if c.says != "" {
			check.That(t, err != nil && strings.Contains(err.Error(), c.says), "%s, %s: %v", c.url, c.file, err)
			continue
		}
		check.That(t, err == nil && *target.password() == c.want, "%s, %s: %v", c.url, c.file, err)
	}
}

func TestInvalidTLSOptions(t *testing.T) {
	for says, c := range map[string]Credentials{
		"must begin with rediss://": {CACert: "x"},
		"needed together":           {Cert: "x"},
		"--cacert: open":            {CACert: "/no/such"},
		"no certificate in PEM":     {CACert: os.DevNull},
		"--cert and --key: open":    {Cert: "/no/such", Key: "/no/such"},
	} {
		url := "rediss://h"
		if c.CACert == "x" {
			url = "redis://h"
		}
		_, err := Parse(url, c)
		check.That(t, err != nil && strings.Contains(err.Error(), says), "%+v: %v", c, err)
	}
}
