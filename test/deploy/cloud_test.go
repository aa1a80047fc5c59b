package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/apimanagement/armapimanagement/v3"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/appcontainers/armappcontainers/v3"
	"github.com/awslabs/goformation/v7"
	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/getkin/kin-openapi/openapi2"
	"google.golang.org/api/run/v1"
	"sigs.k8s.io/yaml"
)

// program builds the program once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "cdc-relay-deploy-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "cdc-relay")
	build := exec.Command("go", "build", "-o", path, "./cmd/cdc-relay")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := program(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// says runs the program and gives its output.
func says(t *testing.T, environment []string, args ...string) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir = t.TempDir() // without a config file
	cmd.Env = append(os.Environ(), environment...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("cdc-relay %v: %v\n%s", args, err, out)
	}
	return string(out)
}

const secret = "whsec_c2VjcmV0IG9mIHRoZSBkZXBsb3kgdGVzdHM="

// accepted wants the program to take a config.
func accepted(t *testing.T, config string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cdc-relay.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	says(t, []string{"DATABASE_URL=postgres://x/y", "BILLING_SECRET=" + secret, "ADMIN_TOKEN=a token"}, "init", "--print-sql", "--config", path)
}

// acceptedEnvironment wants the program to know each variable, and to start from them.
func acceptedEnvironment(t *testing.T, text []byte) {
	t.Helper()
	known := says(t, nil, "help", "config")
	var environment []string
	for _, name := range regexp.MustCompile(`CDC_RELAY_[A-Z0-9_]+`).FindAllString(string(text), -1) {
		if !strings.Contains(known, name+"\n") {
			t.Errorf("the program has no variable %s", name)
		}
		value := "x"
		switch {
		case name == "CDC_RELAY_DATABASE_URL":
			value = "postgres://x/y"
		case strings.HasSuffix(name, "_URL"):
			value = "https://hooks.example.com"
		case strings.HasSuffix(name, "DESTINATIONS_0_SECRETS"):
			value = secret
		case strings.HasSuffix(name, "_LISTEN"):
			value = ":8081"
		case strings.HasSuffix(name, "_PRESET"):
			value = "github"
		case strings.HasSuffix(name, "_TIMEOUT"):
			value = "8s"
		case strings.HasSuffix(name, "_NETWORKS"):
			value = "true"
		}
		environment = append(environment, name+"="+value)
	}
	if len(environment) < 4 {
		t.Fatalf("only %v is set", environment)
	}
	says(t, environment, "init", "--print-sql")
}

// TestCompose: the file loads as Compose loads it, with the services that the README
// names.
func TestCompose(t *testing.T) {
	t.Parallel()
	project, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: directory + "/compose", ConfigFiles: []types.ConfigFile{{Filename: "compose.yaml", Content: read(t, "compose", "compose.yaml")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range project.ServiceNames() {
		if !strings.Contains(string(readme), "`"+name+"`") {
			t.Errorf("the README doesn't name the service %s", name)
		}
	}
	if len(project.Services) != 3 {
		t.Errorf("services %v, want postgres, relay and receiver", project.ServiceNames())
	}
	for _, name := range []string{"relay", "receiver"} {
		if s := project.Services[name]; !s.ReadOnly {
			t.Errorf("%s may write its root", name)
		}
	}
	acceptedEnvironment(t, read(t, "compose", "compose.yaml"))
}

// TestAWS: each resource decodes into goformation's types, which know no other field.
func TestAWS(t *testing.T) {
	t.Parallel()
	template, err := goformation.ParseYAML(read(t, "aws", "cdc-relay.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	service, err := template.GetECSServiceWithName("Service")
	if err != nil || *service.DesiredCount != 2 {
		t.Errorf("service %+v: %v", service, err)
	}
	task, err := template.GetECSTaskDefinitionWithName("Task")
	if err != nil || !*task.ContainerDefinitions[0].ReadonlyRootFilesystem {
		t.Errorf("task %+v: %v", task, err)
	}
	for name, resource := range template.Resources {
		if kind := resource.AWSCloudFormationType(); strings.HasPrefix(reflect.TypeOf(resource).String(), "*cloudformation.Custom") {
			t.Errorf("%s has type %s, which nobody knows", name, kind)
		}
	}
	acceptedEnvironment(t, read(t, "aws", "cdc-relay.yaml"))
}

// TestAzure: what the SDK's types read of each resource is all that stands there.
func TestAzure(t *testing.T) {
	t.Parallel()
	var template struct {
		Resources []struct {
			Type       string
			Properties json.RawMessage
		}
	}
	text := read(t, "azure", "cdc-relay.json")
	if err := json.Unmarshal(text, &template); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]func() any{
		"Microsoft.App/containerApps":                     func() any { return &armappcontainers.ContainerAppProperties{} },
		"Microsoft.ApiManagement/service/apis":            func() any { return &armapimanagement.APICreateOrUpdateProperties{} },
		"Microsoft.ApiManagement/service/apis/operations": func() any { return &armapimanagement.OperationContractProperties{} },
	}
	for _, resource := range template.Resources {
		empty, known := kinds[resource.Type]
		if !known {
			t.Errorf("no SDK type for %s", resource.Type)
			continue
		}
		into := empty()
		if err := json.Unmarshal(resource.Properties, into); err != nil {
			t.Errorf("%s: %v", resource.Type, err)
			continue
		}
		again, err := json.Marshal(into)
		if err != nil {
			t.Fatal(err)
		}
		var want, got any
		if err := json.Unmarshal(resource.Properties, &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(again, &got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: the SDK knows only\n%s\nof\n%s", resource.Type, again, resource.Properties)
		}
	}
	acceptedEnvironment(t, text)
}

// TestGoogleCloud: the service decodes strictly into Cloud Run's type, the gateway's
// document is OpenAPI 2.
func TestGoogleCloud(t *testing.T) {
	t.Parallel()
	text := read(t, "gcp", "service.yaml")
	var service run.Service
	if err := yaml.UnmarshalStrict(text, &service); err != nil {
		t.Fatal(err)
	}
	if service.Spec.Template.Metadata.Annotations["run.googleapis.com/cpu-throttling"] != "false" {
		t.Error("the CPU isn't always on")
	}
	acceptedEnvironment(t, text)
	document, err := yaml.YAMLToJSON(read(t, "gcp", "api-gateway.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.DisallowUnknownFields()
	var gateway openapi2.T
	if err := decoder.Decode(&gateway); err != nil {
		t.Fatal(err)
	}
	if path := gateway.Paths["/webhooks/{partner}"]; path == nil || path.Post == nil || path.Get == nil {
		t.Errorf("paths %v", gateway.Paths)
	}
}
