package throwaway

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"
)

// ErrNoDocker says that no Docker daemon answers.
var ErrNoDocker = errors.New("no Docker daemon answers")

// DefaultImage is what containers are started from unless another is named.
const DefaultImage = "postgres:17"

// lifetime bounds how long a container outlives a process that was killed before
// it could remove it.
const lifetime = 2 * time.Hour

// StartContainer starts a server in a container, on a loopback port.
func StartContainer(ctx context.Context, o Options) (*Server, error) {
	pool, err := dockertest.NewPool("")
	if err == nil {
		err = pool.Client.PingWithContext(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDocker, err)
	}
	image := o.Image
	if image == "" {
		image = DefaultImage
	}
	repository, tag, _ := strings.Cut(image, ":")
	if tag == "" {
		tag = "latest"
	}
	args := []string{"postgres"}
	for name, value := range o.settings() {
		args = append(args, "-c", name+"="+value)
	}
	resource, err := pool.RunWithOptions(&dockertest.RunOptions{
		Repository: repository, Tag: tag, Cmd: args,
		Env:          []string{"POSTGRES_HOST_AUTH_METHOD=trust"},
		ExposedPorts: []string{"5432/tcp"},
		PortBindings: map[docker.Port][]docker.PortBinding{"5432/tcp": {{HostIP: "127.0.0.1"}}},
	}, func(host *docker.HostConfig) { host.AutoRemove = true })
	if err != nil {
		return nil, fmt.Errorf("start a container from %s: %w", image, err)
	}
	s := &Server{From: "image " + image, stop: func() error { return pool.Purge(resource) }}
	if err := resource.Expire(uint(lifetime.Seconds())); err != nil {
		return nil, errors.Join(fmt.Errorf("bound the container's life: %w", err), s.Stop())
	}
	s.URL = fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", resource.GetHostPort("5432/tcp"))
	if err := s.awaitContainer(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Server) awaitContainer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.URL)
		if err == nil {
			s.Version = conn.PgConn().ParameterStatus("server_version")
			return conn.Close(ctx)
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("wait for Postgres in the container: %w", errors.Join(err, context.Cause(ctx)))
		}
	}
}
