package main

import (
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
)

const defaultURL = "redis://127.0.0.1:6379"

const urlHelp = `redis://user:password@host:6379/0           one server (rediss:// with TLS, unix:// for a socket)
redis+sentinel://host:26379?master_name=main&addr=host2:26379
redis+cluster://host:7000?addr=host2:7000&addr=host3:7000`

// connect makes a client out of a URL; without one it takes REDIS_URL, and then a server on this host.
func connect(raw string) (redis.UniversalClient, error) {
	from := "--redis"
	if raw == "" {
		raw, from = os.Getenv("REDIS_URL"), "REDIS_URL"
	}
	if raw == "" {
		raw = defaultURL
	}
	rdb, err := parseRedis(raw)
	if err != nil {
		return nil, usage("%s %q: %w; the forms are\n%s", from, redact(raw), err, urlHelp)
	}
	return rdb, nil
}

// once is how often a client dials: the keeper repeats by itself, and knows by when it must have an answer.
const once = 1

func parseRedis(raw string) (redis.UniversalClient, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("not a URL")
	}
	scheme, deployment, _ := strings.Cut(u.Scheme, "+")
	u.Scheme = scheme
	switch {
	case deployment == "cluster":
		o, err := redis.ParseClusterURL(u.String())
		if err != nil {
			return nil, err
		}
		o.DialerRetries = once
		return redis.NewClusterClient(o), nil
	case deployment == "sentinel", deployment == "" && u.Query().Has("master_name"):
		o, err := redis.ParseFailoverURL(u.String())
		if err != nil {
			return nil, err
		}
		if o.MasterName == "" {
			return nil, fmt.Errorf("no master_name")
		}
		o.DialerRetries = once
		return redis.NewFailoverClient(o), nil
	case deployment != "":
		return nil, fmt.Errorf("the scheme %q is unknown", scheme+"+"+deployment)
	}
	o, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, err
	}
	o.DialerRetries = once
	return redis.NewClient(o), nil
}

// redact hides the password.
func redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "…"
	}
	return u.Redacted()
}
