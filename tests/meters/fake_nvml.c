/* A stand-in for libnvidia-ml.so.1: boards with known power behind the functions that SpecJoule calls through the real
 * nvidia-ml-py. All state lies in one file that the test maps as well, so that loads and faults come from outside the
 * process. Written for these tests; the struct is mirrored in fake_nvml.py.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MAX_SPANS 512
#define MAX_PROCESSES 8
#define MAX_BOARDS 8

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };

typedef struct {
    char uuid[80], name[64], pci[32];
    double idle_w, busy_w, ripple_w, step_s, decay_w, decay_s;
    double refresh_s, jitter, latency_s, lag_s;
    double base_j;              /* counter at the epoch: days of uptime */
    double power_scale;         /* what instant power reads, relative to the truth */
    int64_t span_start[MAX_SPANS], span_end[MAX_SPANS]; /* ns; end 0: still on */
    double span_period_s[MAX_SPANS], span_duty[MAX_SPANS]; /* period > 0: a square load, without ripple or decay */
    int64_t freeze_ns;          /* counter stands still from here on; 0: it does not */
    int64_t reset_ns;           /* counter starts from zero here; 0: never */
    int64_t drop_mj;            /* taken off the counter: a decrease */
    int64_t add_mj;             /* put on the counter: a jump */
    int32_t n_spans, energy_error, any_error, clock_error;
    int32_t power_limit_mw, ecc, persistence, numa_node, mig, obeys_clock;
    int32_t locked_min, locked_max, max_mhz, temperature_c, n_processes;
    int32_t pids[MAX_PROCESSES];
    int64_t throttle_bits, capped_ns, sets, resets, energy_calls;
} board_t;

typedef struct {
    int64_t epoch_ns;
    int32_t n_boards, driver_loads; /* driver_loads moves when the driver is reloaded */
    char driver[32];
    board_t boards[MAX_BOARDS];
} state_t;

static state_t *state;
static int32_t loads_seen = -1;
static __thread uint64_t random_state = 0;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static uint64_t mix(uint64_t x) { /* splitmix64, public domain */
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static double unit(uint64_t x) { return (double)(mix(x) >> 11) / 9007199254740992.0; }

static double draw(void) {
    if (!random_state) random_state = (uint64_t)now_ns() ^ (uint64_t)getpid() << 32;
    return unit(random_state++);
}

static void pause_s(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    if (seconds > 0) nanosleep(&t, NULL);
}

/* Energy since the epoch, J; the same formula as Load.energy_j in virtual_board.py. */
static double energy_j(const board_t *b, double t_ns) {
    double total = b->idle_w * (t_ns - (double)state->epoch_ns) * 1e-9;
    for (int i = 0; i < b->n_spans; i++) {
        double start = (double)b->span_start[i], end = b->span_end[i] ? (double)b->span_end[i] : 9e18;
        double x = fmax(0, fmin(t_ns, end) - start) * 1e-9;
        if (b->span_period_s[i] > 0) {
            double period = b->span_period_s[i], whole = floor(x / period), part = x - whole * period;
            total += (b->busy_w - b->idle_w) * (whole * b->span_duty[i] * period + fmin(part, b->span_duty[i] * period));
            continue;
        }
        double phase = fmod(x, b->step_s) / b->step_s;
        total += (b->busy_w - b->idle_w) * x + b->ripple_w * b->step_s * fmin(phase, 1 - phase);
        if (t_ns > end) total += b->decay_w * b->decay_s * (1 - exp(-(t_ns - end) * 1e-9 / b->decay_s));
    }
    return total;
}

/* The last refresh at or before t: a grid whose every point is moved by up to half the jitter. */
static double refresh_before(const board_t *b, double t_ns) {
    double period = b->refresh_s * 1e9, origin = (double)state->epoch_ns;
    for (int64_t i = (int64_t)floor((t_ns - origin) / period) + 1;; i--) {
        double date = origin + period * ((double)i + b->jitter * (unit((uint64_t)i * 31 + 7) - 0.5));
        if (date <= t_ns) return date;
    }
}

static double counter_j(const board_t *b, double t_ns) {
    if (b->freeze_ns && t_ns > (double)b->freeze_ns) t_ns = (double)b->freeze_ns;
    double seen = refresh_before(b, t_ns) - b->lag_s * 1e9;
    if (b->reset_ns && t_ns > (double)b->reset_ns) return fmax(0, energy_j(b, seen) - energy_j(b, (double)b->reset_ns));
    return b->base_j + energy_j(b, seen);
}

static double power_w(const board_t *b, double width_s) {
    double t = refresh_before(b, (double)now_ns()) - b->lag_s * 1e9;
    return b->power_scale * (energy_j(b, t) - energy_j(b, t - width_s * 1e9)) / width_s;
}

static int enter(board_t *b) {
    if (!state) return UNINITIALIZED;
    if (state->driver_loads != loads_seen) return loads_seen < 0 ? UNINITIALIZED : DRIVER_NOT_LOADED;
    return b ? b->any_error : SUCCESS;
}

#define ENTER(device) board_t *b = (board_t *)(device); { int e_ = enter(b); if (e_) return e_; }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (!state) {
        const char *path = getenv("FAKE_NVML_STATE");
        int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
        if (fd < 0) return DRIVER_NOT_LOADED;
        void *p = mmap(NULL, sizeof(state_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (p == MAP_FAILED) return DRIVER_NOT_LOADED;
        state = p;
    }
    if (state->driver_loads < 0) return DRIVER_NOT_LOADED;
    loads_seen = state->driver_loads;
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { loads_seen = -1; return SUCCESS; }
const char *nvmlErrorString(int code) { static char text[40]; snprintf(text, sizeof text, "Fake error %d", code); return text; }
int nvmlSystemGetDriverVersion(char *out, unsigned n) { int e = enter(NULL); if (e) return e; snprintf(out, n, "%s", state->driver); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *n) { int e = enter(NULL); if (e) return e; *n = (unsigned)state->n_boards; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **out) {
    int e = enter(NULL);
    if (e) return e;
    if (i >= (unsigned)state->n_boards) return INVALID;
    *out = &state->boards[i];
    return SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    int e = enter(NULL);
    if (e) return e;
    for (int i = 0; i < state->n_boards; i++)
        if (!strcmp(state->boards[i].uuid, uuid)) {
            if (state->boards[i].any_error == GPU_IS_LOST) return NOT_FOUND;
            *out = &state->boards[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}
int nvmlDeviceGetUUID(void *d, char *out, unsigned n) { ENTER(d) snprintf(out, n, "%s", b->uuid); return SUCCESS; }
int nvmlDeviceGetName(void *d, char *out, unsigned n) { ENTER(d) snprintf(out, n, "%s", b->name); return SUCCESS; }
int nvmlDeviceGetIndex(void *d, unsigned *out) { ENTER(d) *out = (unsigned)(b - state->boards); return SUCCESS; }

int nvmlDeviceGetTotalEnergyConsumption(void *d, unsigned long long *mj) {
    ENTER(d)
    __atomic_add_fetch(&b->energy_calls, 1, __ATOMIC_RELAXED);
    double latency = b->latency_s * draw(), share = draw();
    pause_s(latency * share);
    if (b->energy_error) return b->energy_error;
    *mj = (unsigned long long)(counter_j(b, (double)now_ns()) * 1e3) - (unsigned long long)b->drop_mj + (unsigned long long)b->add_mj;
    pause_s(latency * (1 - share));
    return SUCCESS;
}

typedef struct { uint32_t field, scope; int64_t timestamp, latency; uint32_t type; uint32_t code; union { double d; uint32_t u; uint64_t ull; } value; } field_t;
int nvmlDeviceGetFieldValues(void *d, int n, field_t *fields) {
    ENTER(d)
    for (int i = 0; i < n; i++) {
        fields[i].type = 1; /* unsigned int */
        fields[i].code = SUCCESS;
        if (fields[i].field == 186) fields[i].value.u = (uint32_t)(power_w(b, 0.005) * 1e3);
        else if (fields[i].field == 185) fields[i].value.u = (uint32_t)(power_w(b, 1.0) * 1e3);
        else fields[i].code = NOT_SUPPORTED;
    }
    return SUCCESS;
}
int nvmlDeviceGetPowerUsage(void *d, unsigned *mw) { ENTER(d) *mw = (unsigned)(power_w(b, 1.0) * 1e3); return SUCCESS; }
int nvmlDeviceGetClockInfo(void *d, unsigned type, unsigned *mhz) {
    ENTER(d)
    *mhz = type == 1 ? (unsigned)(b->locked_max && b->obeys_clock ? b->locked_max : b->max_mhz) : 2619;
    return SUCCESS;
}
int nvmlDeviceGetMaxClockInfo(void *d, unsigned type, unsigned *mhz) { ENTER(d) (void)type; *mhz = (unsigned)b->max_mhz; return SUCCESS; }
int nvmlDeviceGetTemperature(void *d, unsigned sensor, unsigned *c) { ENTER(d) (void)sensor; *c = (unsigned)b->temperature_c; return SUCCESS; }
int nvmlDeviceGetCurrentClocksEventReasons(void *d, unsigned long long *bits) { ENTER(d) *bits = (unsigned long long)b->throttle_bits; return SUCCESS; }
int nvmlDeviceGetViolationStatus(void *d, unsigned policy, unsigned long long *out) {
    ENTER(d)
    (void)policy;
    out[0] = (unsigned long long)(now_ns() / 1000);
    out[1] = (unsigned long long)b->capped_ns;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *out) { ENTER(d) out[0] = 80ull << 30; out[1] = 79ull << 30; out[2] = 1ull << 30; return SUCCESS; }
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process_t;
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, process_t *out) {
    ENTER(d)
    unsigned room = *n, have = (unsigned)b->n_processes;
    *n = have;
    if (!have) return SUCCESS;
    if (room < have || !out) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < have; i++) out[i] = (process_t){(unsigned)b->pids[i], 1ull << 30, 0xffffffffu, 0xffffffffu};
    return SUCCESS;
}
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *mw) { ENTER(d) *mw = (unsigned)b->power_limit_mw; return SUCCESS; }
int nvmlDeviceGetEccMode(void *d, unsigned *now, unsigned *later) { ENTER(d) *now = *later = (unsigned)b->ecc; return SUCCESS; }
int nvmlDeviceGetPersistenceMode(void *d, unsigned *on) { ENTER(d) *on = (unsigned)b->persistence; return SUCCESS; }
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
int nvmlDeviceGetPciInfo_v3(void *d, pci_t *out) { ENTER(d) memset(out, 0, sizeof *out); snprintf(out->bus_id, 32, "%s", b->pci); return SUCCESS; }
int nvmlDeviceGetNumaNodeId(void *d, int *node) { ENTER(d) if (b->numa_node < 0) return NOT_SUPPORTED; *node = b->numa_node; return SUCCESS; }
int nvmlDeviceGetMigMode(void *d, unsigned *now, unsigned *later) { ENTER(d) if (b->mig < 0) return NOT_SUPPORTED; *now = *later = (unsigned)b->mig; return SUCCESS; }
int nvmlDeviceSetGpuLockedClocks(void *d, unsigned low, unsigned high) {
    ENTER(d)
    if (b->clock_error) return b->clock_error;
    b->locked_min = (int32_t)low;
    b->locked_max = (int32_t)high;
    b->sets++;
    return SUCCESS;
}
int nvmlDeviceResetGpuLockedClocks(void *d) {
    ENTER(d)
    if (b->clock_error) return b->clock_error;
    b->locked_min = b->locked_max = 0;
    b->resets++;
    return SUCCESS;
}
